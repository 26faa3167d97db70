"""A request that is answered with an error, in the dialect's own form.

From:  whoever finds the reason: sessions.py, opening.py, app.py.
To:    app.py, which asks the dialect for its bytes.
"""


class Refusal(Exception):
    """Gateway boundary: this request is answered with an error; a retry gets the same."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param
