"""Work with the tools of an office whose state goes on changing."""
