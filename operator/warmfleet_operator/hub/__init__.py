"""Asks the model hub which commit a branch or tag is, once per rollout.

May import `cluster`, `desired`, `settings` and contracts. Public: `commits.HubCommits` asks beside
reconciliations, bounded, with a backoff, and keeps the answers until a Deployment carries them;
`client.ask_commit` is one request.
"""
