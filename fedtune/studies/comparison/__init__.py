"""A comparison of algorithms: equal budgets, fresh seeds, tables and tests."""
