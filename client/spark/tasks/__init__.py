"""What runs in Spark's tasks: plain threads without an event loop, on connections that block.

=======================  ==========================================================================
``blocking_connection``  one connection to one daemon, and those that a worker process keeps
``blocking_cluster``     which node leads what, and a connection to it
``reader``               a range of offsets, fetched and wrapped as Arrow batches
``writer``               Arrow batches sorted into partitions
``producer``             ``ProducerCore`` on blocking connections
=======================  ==========================================================================
"""
