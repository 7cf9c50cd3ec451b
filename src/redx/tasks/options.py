"""Groups of options that tasks read; the keywords are those of `redx.runs.options`."""

TRAINING = ("routing", "batch", "virtual_batch", "epochs_experts", "epochs_router", "patience", "study")
RISK = ("risk", "confidence", "score")
BASE = ("device", "share", "limit", *RISK, *TRAINING, "epochs_base", "integrate")
TABLE = ("file", "text", "label", "domain", "split_column", "clusters", "split")
TRUNK = ("trunk", "depth")
READING = ("backbone", "blocks", "pooling", "precision", "tokens", "runtime", *TRUNK, "train_blocks")
TOY = TRAINING
INTENTS = ("data_dir", "shots", *READING, *BASE)
MNIST = ("backbone", "data_dir", *BASE)
TEXTS = (*TABLE, *READING, *BASE)
FEATURES = (*TABLE, *TRUNK, *BASE)
ADDITION = ("questions_file", "total", "split", *READING, *BASE)
MIXED = (*ADDITION, "operators")
OPERATIONS = (*ADDITION, "operations")
STEPS = ("split", "experts", "decomposer", *READING, *BASE)
