"""What a user describes: a generative model with its random inputs made explicit."""

from coarea.generators.generator import AbstractGenerator as AbstractGenerator
from coarea.generators.generator import AbstractSimulator as AbstractSimulator
from coarea.generators.generator import Generator as Generator
from coarea.generators.markov import Markov as Markov
