"""The paper's third study: in-paint a handwritten digit, given a part of it."""
