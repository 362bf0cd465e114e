import jax, jax.numpy as jnp, numpy as np, pytest
def test_p():
    print(jax.config.jax_numpy_rank_promotion, jax.device_count())
    try:
        jnp.ones((2,3)) + jnp.ones(3); print("NO RAISE")
    except ValueError as e: print("RAISE", e)
    from mhsh.models.attention import attention_mask
    try:
        attention_mask(jnp.ones((2,3)), causal=False); print("NO RAISE")
    except Exception as e: print("RAISE", type(e), str(e)[:100])
