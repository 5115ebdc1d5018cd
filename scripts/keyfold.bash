# bash completion for keyfold
_keyfold() {
    local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]}
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "info bench profile tune verify generate tokenize --help --version" -- "$word"))
        return
    fi
    case $previous in
        --backend) COMPREPLY=($(compgen -W "cpu cuda" -- "$word")); return ;;
        --isa) COMPREPLY=($(compgen -W "scalar avx2 avx512 avx512bf16 all" -- "$word")); return ;;
        --dtype) COMPREPLY=($(compgen -W "fp32 fp16 bf16 q4_0 q4_1 q5_0 q5_1 q8_0 q4_k q5_k q6_k" -- "$word")); return ;;
        --device) COMPREPLY=($(compgen -W "cpu cuda" -- "$word")); return ;;
        --cache | --rows | --weights) COMPREPLY=($(compgen -W "fp16 bf16 fp32" -- "$word")); return ;;
        --activations) COMPREPLY=($(compgen -W "exact int8" -- "$word")); return ;;
        -m | --model) COMPREPLY=($(compgen -f -X '!*.gguf' -- "$word") $(compgen -d -- "$word")); return ;;
    esac
    local options=
    case $command in
        info) options="--backend --ceilings --threads --json --help" ;;
        bench)
            options="--backend --shape --dtype --causal --no-residual --int8 --rope --unpacked --threads --isa --seconds --quick --json --csv --model --help"
            [ "$COMP_CWORD" -eq 2 ] && options="attention softmax rmsnorm swiglu rope kv_append embedding linear merge model $options" ;;
        tune) options="--out --commit --help" ;;
        profile)
            options="--from --shape --dtype --causal --no-residual --int8 --rope --unpacked --help"
            [ "$COMP_CWORD" -eq 2 ] && options="attention softmax rmsnorm swiglu rope kv_append embedding linear merge $options" ;;
        verify) options="--op --backend --isa --case --seed --random --threads --quick --large --device --part --after --limit --stop-after --cases --once --kernels --names --times --list --help" ;;
        generate) options="--model --prompt --ids --tokens --chat --system --temp --top-k --top-p --min-p --seed --threads --context --device --cache --rows --weights --activations --chunk --ignore-end --logits --json --help" ;;
        tokenize) options="--model --prompt --plain --json --help" ;;
    esac
    COMPREPLY=($(compgen -W "$options" -- "$word"))
}
complete -F _keyfold keyfold
