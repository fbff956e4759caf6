"""Graphs: the IR, reading and writing ONNX, rewriting, partitioning. No device in here."""
