"""Finding Vulkan drivers: by their manifests, as WebGPU over Vulkan does too."""

from gpuedge.backends.manifests import candidates

__all__ = ["candidates"]
