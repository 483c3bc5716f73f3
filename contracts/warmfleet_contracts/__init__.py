"""What two warmfleet processes must agree on: names, hashes, messages. Imports no sibling package."""
