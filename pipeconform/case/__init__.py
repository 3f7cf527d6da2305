"""Cases: immutable descriptions of executions, how they are drawn, built and made simpler."""
