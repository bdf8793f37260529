"""Generative models with explicit random inputs, as users describe them."""

from coarea.generators.generator import AbstractGenerator as AbstractGenerator
from coarea.generators.generator import AbstractSimulator as AbstractSimulator
from coarea.generators.generator import Generator as Generator
from coarea.generators.markov import Markov as Markov
