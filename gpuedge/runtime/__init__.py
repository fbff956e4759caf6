"""What the public API shares: devices by name, and graphs placed, compiled and run on them."""
