"""One case on one rank: the plan that the adapter is given, the steps of the program, and what they showed."""
