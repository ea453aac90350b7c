"""Model families, each a Program over named weights; and how a checkpoint becomes a model."""
