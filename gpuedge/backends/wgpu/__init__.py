"""The backends `wgpu`, `metal` and `dx12`: WebGPU over Vulkan, OpenGL, Metal and Direct3D 12."""
