"""What the draws say of the run that made them."""

from coarea.diagnostics.diagnose import Diagnosis as Diagnosis
from coarea.diagnostics.diagnose import diagnose as diagnose
