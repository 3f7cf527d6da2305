"""What the implementation sends and receives, whatever API it uses.

``records``: the plain data that crosses to the controller. ``recorder``: what runs on a rank, and which operations
are pending on it right now. ``kernels``: how operations are seen. ``buffers``: what happens to memory in flight.
"""
