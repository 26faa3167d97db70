"""Where an agent works, and the exact record of what it did. Imports neither `training` nor `gyre_web`."""
