"""Images as input: vision-language models, from the rows of a data set to the engine and the trainer."""
