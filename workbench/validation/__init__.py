"""Predictions compared with measurements: published runs, the study, and your own recording."""

from . import claims, own_run, pollux, published, study
from .cells import (
    VALIDATION,
    logged_links,
    one_link_or_own,
    summary,
    validate_bcaffe,
    validate_contention,
    validate_ddl,
    validate_gpus,
    validate_horovod,
    validate_pollux,
)

__all__ = [
    "VALIDATION",
    "logged_links",
    "one_link_or_own",
    "summary",
    "validate_bcaffe",
    "validate_contention",
    "validate_ddl",
    "validate_gpus",
    "validate_horovod",
    "validate_pollux",
    "claims",
    "own_run",
    "pollux",
    "published",
    "study",
]
