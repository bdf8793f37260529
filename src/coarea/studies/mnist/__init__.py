"""The paper's third study: the rest of a handwritten digit, given a part of it."""
