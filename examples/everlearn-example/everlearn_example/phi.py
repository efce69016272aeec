"""Where everything is in a Phi model."""

from everlearn.model.anatomy import Architecture, Attention, FeedForward, Stack, register_architecture

register_architecture(
    "phi",
    Architecture(
        kind="decoder",
        head="lm_head",
        stacks=(
            Stack(
                layers="layers",
                attentions=(
                    Attention(
                        inputs=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
                        output="self_attn.dense",
                    ),
                ),
                feed_forward=FeedForward(inputs=("mlp.fc1",), output="mlp.fc2"),
            ),
        ),
    ),
)
