"""What tests need of a GPU that is not there."""
