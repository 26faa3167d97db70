"""What can be wrong with an image, for those who do not make any."""


class ImageUnavailable(Exception):
    """Boundary: sandbox. An image cannot be had here; the text names it and says what to do."""
