"""What maintainers of capability databases need: lint, seal, compare, sign and publish.

Not shipped: a device reads databases with `gpuedge.capdb`. ``python tools/capdb --help``.
"""
