"""Instructions that can be checked, such as a number of words, judged by the checks of lm-eval."""
