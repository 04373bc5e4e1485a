"""What a GPU reaches, against what it could: ``python -m bench.gpu_check --bench``."""
