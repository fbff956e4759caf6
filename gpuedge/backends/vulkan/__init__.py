"""The Vulkan backend: Vulkan 1.0 and newer, compute only."""
