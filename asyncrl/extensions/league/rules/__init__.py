"""What a league decides by: pure functions, one file each."""
