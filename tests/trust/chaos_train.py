"""The command that ckpt-chaos kills: a small training run, begun or gone on with, whichever the folder needs.

python -m tests.trust.chaos_train INPUTS OUT
"""

import sys
from pathlib import Path

from sdgmnet.cli import main
from tests.trust.jobs import resume_training

if __name__ == "__main__":
    words = resume_training(Path(sys.argv[1]), Path(sys.argv[2]))
    code = main([str(word) for word in words])
    print("resumed" if "--resume" in words else "resumed at step 0")
    sys.exit(code)
