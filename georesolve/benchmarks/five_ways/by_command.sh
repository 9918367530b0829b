georesolve nearest "$1" "$2" -o "$3" -k 3 --max-distance 50km --columns name --quiet
