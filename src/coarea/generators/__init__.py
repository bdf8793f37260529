"""What a user describes: a generative model with its random inputs made explicit."""

from coarea.generators.generator import Generator as Generator
