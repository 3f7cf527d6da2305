"""Cases: immutable descriptions of what to run, and the strategies that draw them."""
