"""Write a program, judged by what it prints."""
