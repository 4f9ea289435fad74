"""Adapters, which connect channels with the host: conversations, webhooks, standard streams."""
