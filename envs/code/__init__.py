"""Write a program, judged by its output."""
