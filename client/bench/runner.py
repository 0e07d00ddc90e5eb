async def run_benchmarks(*a, **k):
    return 0
