"""The places that messages of sessions come from and go to: conversations, webhooks, standard
streams.
"""
