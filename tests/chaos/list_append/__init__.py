"""List-append, as Jepsen's Kafka workload: transactions of sends and polls over several partitions, under the chaos faults.

Workers write in transactions, abort some of them on purpose, share transactional ids, are killed at a commit and suspended
for longer than their timeout. What they were told and what they read is judged afterwards: a value belongs to one
transaction, so a read tells which transactions its reader has seen. ``python -m tests.chaos.list_append`` runs it.
"""
