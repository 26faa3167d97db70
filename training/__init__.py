"""What is learnt from rollouts, and when which device does it. May import `environments`, never `gyre_web`."""
