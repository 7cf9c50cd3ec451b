"""Groups of options that tasks read; the keywords are those of `redx.runs.options`."""

TRAINING = ("routing", "batch", "virtual_batch", "epochs_experts", "epochs_router", "patience", "study")
RISK = ("risk", "confidence", "budget", "score")
BY_DOMAIN = ("by", "small")
BASE = ("device", "share", "limit", *RISK, *BY_DOMAIN, *TRAINING, "epochs_base", "integrate")
TABLE = ("file", "text", "label", "domain", "split_column", "clusters", "split")
TRUNK = ("trunk", "depth")
ENCODING = ("backbone", "blocks", "pooling", "precision", "tokens", "runtime", *TRUNK, "train_blocks")
TOY = TRAINING
INTENTS = ("data_dir", "shots", *ENCODING, *BASE)
MNIST = ("backbone", "data_dir", *BASE)
TEXTS = (*TABLE, *ENCODING, *BASE)
FEATURES = (*TABLE, *TRUNK, *BASE)
ADDITION = ("questions_file", "total", "split", *ENCODING, *BASE)
MIXED = (*ADDITION, "operators")
OPERATIONS = (*ADDITION, "operations")
STEPS = ("split", "experts", "decomposer", *ENCODING, *BASE)
ADAPTERS = ("backbone", "train", "adapter", "file", "only_domain", "steps", "rank", "documents", *RISK, "routing")
