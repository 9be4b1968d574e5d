"""What may be known of the tokens of a trajectory besides their own arrays, a module for each kind; `table` has all."""
