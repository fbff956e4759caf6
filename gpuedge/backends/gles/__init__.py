"""The OpenGL ES backends: three levels, 2.0 and 3.0 with fragment shaders, 3.1 with compute."""
