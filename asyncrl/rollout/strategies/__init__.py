"""How a leased group is played where it is not played plainly, a module for each way; `table` names them."""
