"""Classes and functions that are copied word for word into plain programs; nothing here is called."""
