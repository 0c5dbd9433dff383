// How rotary position encoding pairs the numbers of a head. It decides the order of the rows of q_proj and k_proj.
#pragma once

namespace cairn {

enum class RotaryLayout {
  kInterleaved,  // pairs (0, 1), (2, 3), ...: llama2.c, GGUF, the paper's models
  kHalf,         // pairs (0, d/2), (1, d/2 + 1), ...: Hugging Face
};

}  // namespace cairn
