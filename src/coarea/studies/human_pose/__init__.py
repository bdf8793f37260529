"""The paper's second study: a person's pose, bone lengths and camera from 2D joint positions."""
