"""The toy experiments: which experts survive mixing?"""
