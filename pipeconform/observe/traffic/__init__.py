"""What the implementation sends and receives, whichever API it uses.

``records``: the plain data that crosses to the controller. ``recorder``: runs on a rank, and knows which operations
are pending on it right now. ``buffers``: guards memory in flight.
"""
